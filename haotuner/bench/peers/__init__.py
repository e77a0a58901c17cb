"""One contender a file. Each module may import its library only inside its class: it runs in a process of its own."""
