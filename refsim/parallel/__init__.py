"""The parallel schemes, one short file each; every file opens with its data movement and its cost."""
