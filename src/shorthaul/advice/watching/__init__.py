"""One step of a user's model, watched without a trace: its tensors, its time, its memory."""
