"""What decides the masks: criterion × allocation × pattern, each in its own file."""
