"""HTTP and HTML. No arithmetic: every number arrives from app.race.scoreboard."""
