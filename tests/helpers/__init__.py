"""What several test files share: small real models, drawn media, ranks of a torchrun, slow references."""
