"""The portal in a real browser, against real brokers."""
