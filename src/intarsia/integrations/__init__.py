"""intarsia in other tools: each module plugs the public functions into one package; nothing imports it."""
