"""The command line, the settings, the local stack of real servers, and the demo."""
