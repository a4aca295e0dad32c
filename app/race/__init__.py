"""The domain: two lanes, one log, pure folds. No FastAPI and no HTML in here."""
