"""The domain, room by room: hand-worked numbers, fake servers, no HTTP to the outside."""
