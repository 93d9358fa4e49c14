"""Drop-ins: each stands in for the timer store of something people already run, by that something's own face."""
