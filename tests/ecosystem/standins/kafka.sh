#!/bin/bash
# As apache/kafka: the settings of /mnt/shared/config, a folder that is formatted at the first start.
set -euf
settings=/mnt/shared/config/server.properties
run() { java ${KAFKA_HEAP_OPTS:--Xmx512m} -cp '/opt/kafka/libs/*' "$@"; }
[ -e /var/lib/kafka/data/meta.properties ] \
    || run kafka.tools.StorageTool format --cluster-id 5L6g3nShT-eMCtK--X86sw --config "$settings"
exec java ${KAFKA_HEAP_OPTS:--Xmx512m} -cp '/opt/kafka/libs/*' kafka.Kafka "$settings"
