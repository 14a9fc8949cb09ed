"""VinePPO (arXiv 2410.01679): credit for every step of an answer from fresh rollouts, on chains of arithmetic."""
