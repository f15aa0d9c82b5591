"""Which method, with which schedule: chosen, remembered, estimated."""
