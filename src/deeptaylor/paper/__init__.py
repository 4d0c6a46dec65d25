"""The paper's figures and tables, one module each; every one is a command that writes its files."""
