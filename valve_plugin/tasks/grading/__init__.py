"""Does a patch resolve a task: hidden tests restored, run in the sandbox, and judged one by one."""
