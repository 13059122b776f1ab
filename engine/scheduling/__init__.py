"""What runs next and why: pure Python over integers. No torch, no clock of its own, no randomness of its own."""
