"""What a Python user calls: a trainer in five lines, and the model underneath."""
