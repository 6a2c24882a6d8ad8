"""An autoencoder's decoder in TTNN against refsim in the same storage dtype (bf16), whole, by cut, at borders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from parity.cases import Case
from parity.cases.checkpoints import MODELS
from parity.kinds.base import Metrics, TTNNKind, latent_inputs
from parity.kinds.cpu.vae_decoder import compare_frames, cuts
from parity.kinds.ttnn.transformer import WHOLE, compare_communication
from parity.measure.thresholds import Threshold
from refsim.models.registry import by_class_name
from refsim.runtime.launch import Result

if TYPE_CHECKING:
    from tt_impl.run.launch import Outcome


class TTNNVAEDecoder(TTNNKind):
    """Latents in, frames out."""

    program = "tt_impl.pipelines.transformer:program"
    thresholds: ClassVar = {
        "bf16": (
            *WHOLE,
            Threshold(
                "seam_ratio",
                2.0,
                "two bf16 programs differ by rounding, which is alike all over a picture; at a border that is not "
                "exchanged they differ many times as much",
                optional=True,
            ),
        )
    }

    inputs = staticmethod(latent_inputs)

    def measure(self, case: Case, seed: int, outcome: Outcome, reference: Result) -> tuple[Metrics, dict[str, Any]]:
        """Judge frames by rows and by columns, each side cut as the decoder cuts it; the worse of both counts."""
        cfg = case.layout.config().cfg
        rows, columns = cuts(case)
        ours = outcome.tensors["sample"].float()
        ref = reference.tensors["sample"].float()
        metrics = compare_frames(ours, ref, case.shape.latent, (rows, columns))
        results = self._passes(case) * ((rows > 1) + (columns > 1)) + (cfg > 1)
        counted, extra = compare_communication(outcome, reference, cfg, results=results)
        return metrics | counted, extra

    @staticmethod
    def _passes(case: Case) -> int:
        """Return the chunks refsim decodes the latent in, each of which ends in a gather per cut direction."""
        frames = case.shape.latent[0] if len(case.shape.latent) == 3 else 1
        return max(1, frames // by_class_name(MODELS[case.model].class_name).frames_per_pass)
