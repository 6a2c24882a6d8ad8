"""Files that are read and written: checkpoints, safetensors, LoRA, output, tables."""
