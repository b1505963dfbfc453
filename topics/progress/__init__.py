"""The progress topic and the copy topic of a shard: records, codecs and readers."""
