"""CogVideoX transformer: 2b with a table of positions, 5b and 1.5 with rotary ones."""
