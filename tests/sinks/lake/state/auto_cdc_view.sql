CREATE VIEW orders_history AS
SELECT * EXCEPT (_key, _from_us, _to_us, _from_token, _op),
    timestamp_micros(_from_us) AS __START_AT,
    timestamp_micros(_to_us) AS __END_AT
FROM delta.`lake/commerce/_shardstream_history/shop/orders`
WHERE _to_us IS NULL OR _from_us < _to_us
