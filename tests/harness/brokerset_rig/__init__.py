"""What tests from outside need: servers as processes, and a wire client that shares no code with the product."""
