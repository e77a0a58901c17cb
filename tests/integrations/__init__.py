"""Tests of the projects in integrations/: each inside the program that it extends, or in a host that does what that does."""
