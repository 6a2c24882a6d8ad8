"""The speculative loop of zoecarver/dflash beside transformers: logits of the prompt, and the tokens."""

import small
import spec_decode
import torch
from common import check, pcc

NEW = 3
forward = spec_decode.target_fwd_save_hs
prefill: list = []


def noted(*args):
    """Keep the logits of the first forward."""
    logits, hidden = forward(*args)
    if not prefill:
        prefill.append(spec_decode.rb_dim1(logits).float())
    return logits, hidden


spec_decode.target_fwd_save_hs = noted
mesh = spec_decode.open_dev()
weights = spec_decode.load_target_weights(mesh)
weights.update(spec_decode.load_draft_weights(mesh))
tokens = spec_decode.spec_generate(small.PROMPT, weights, mesh, max_new=NEW).tolist()
model = small.target()
with torch.inference_mode():
    logits = model(small.PROMPT[None]).logits[0]
count = len(small.PROMPT)
check("logits PCC", pcc(prefill[0][:count, : small.VOCAB], logits))
check("transformers' greedy tokens", "yes" if tokens == small.greedy(model, len(tokens) - count) else "no")
spec_decode.close_dev(mesh)
