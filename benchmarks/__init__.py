"""One runnable file per claim. Each prints one JSON object last: name, value, goal, unit, detail."""
