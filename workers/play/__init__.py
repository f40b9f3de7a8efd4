"""The es-play command: plays, films, exports and reconstructs policies."""
