"""Many ranks: launching them, counting what they send, and the ways to split a training step over them."""
