"""Public name of :mod:`parity.cases.inputs`, for packages that add a model."""

from parity.cases.inputs import attention_inputs, decoder_inputs, encoder_inputs, generator, model_inputs, rounded

__all__ = ["attention_inputs", "decoder_inputs", "encoder_inputs", "generator", "model_inputs", "rounded"]
