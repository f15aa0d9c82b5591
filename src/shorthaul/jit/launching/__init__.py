"""What a launch on a GPU needs: Triton, the right device, a grid that can be counted."""
