"""The soak: daemons killed at random moments and at every named point; what they acknowledged is compared."""
