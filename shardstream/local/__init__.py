"""Real MySQL, MariaDB and Kafka servers on loopback, with their data in one folder."""
