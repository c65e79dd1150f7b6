"""Statistics: functions from arrays to numbers with intervals. Depends only on numpy and scipy; reads no files, prints no text."""
