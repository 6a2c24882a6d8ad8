"""The traced target of zoecarver/dflash: a trace captured on zeros, replayed for each token, beside transformers."""

import small
import torch
import torch.nn.functional as F
import ttnn
from common import check, pcc
from small import device, qwen3

NEW = 3
ROWS = 32
mesh = device.open_dev()
weights = qwen3.load_target_weights(mesh)
scratch = qwen3.prealloc_target_scratch(ROWS, weights, mesh)
qwen3.capture_target_trace(scratch, weights, mesh)
tokens = small.PROMPT.tolist()
for _ in range(NEW):
    hidden = F.pad(weights["embed_h"][torch.tensor(tokens)], (0, 0, 0, ROWS - len(tokens)))
    on_host = ttnn.from_torch(hidden, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    logits = device.rb_dim1(qwen3.execute_target_trace(scratch, on_host, mesh)).float()[: len(tokens), : small.VOCAB]
    tokens.append(int(logits[-1].argmax()))
model = small.target()
with torch.inference_mode():
    expected = model(torch.tensor(tokens[:-1])[None]).logits[0]
check("logits PCC of the last replay", pcc(logits, expected))
check("transformers' greedy tokens", "yes" if tokens == small.greedy(model, NEW) else "no")
device.close_dev(mesh)
