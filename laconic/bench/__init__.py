"""What `laconic bench` measures: server steps, their overhead, meta-training and rounds."""
