"""Programs that tests run as processes of their own, to kill them."""
