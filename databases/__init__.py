"""What everyone who talks to MySQL or MariaDB shares: connections, errors, grants, server facts."""
