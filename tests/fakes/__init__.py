"""Stand-ins for the servers this project talks to. For tests only."""
