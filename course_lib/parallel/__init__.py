"""Many ranks: launching them, counting what they send, and the strategies that split a training step."""
