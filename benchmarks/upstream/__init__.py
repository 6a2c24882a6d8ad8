"""tt-metal's own tests on the mock, and mistakes seeded into tt_dit; needs a checkout of tt-metal."""
