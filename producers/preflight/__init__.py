"""What must hold on a server before its binlog is followed: settings, grants, columns."""
