"""MySQL and MariaDB as targets."""
