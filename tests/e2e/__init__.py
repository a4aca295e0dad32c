"""A real Chromium in front of the real app, with fake model servers behind it. Started as a user would."""
