"""Research: experiments over the paper's conditions, the simulated model, and the demo."""
