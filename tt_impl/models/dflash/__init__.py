"""DFlash drafter in TTNN."""
