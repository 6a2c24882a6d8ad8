"""DFlash: a drafter that proposes a block of tokens at once from the target's hidden states."""
