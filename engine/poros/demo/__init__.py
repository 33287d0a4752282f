"""`poros demo`: a small real model learns a voice in a few minutes, streamed, on any machine."""
