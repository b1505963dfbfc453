CREATE TABLE customers (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  name VARCHAR(80) NOT NULL,
  city VARCHAR(60) CHARACTER SET latin1,
  tier ENUM('bronze', 'silver', 'gold') NOT NULL DEFAULT 'bronze',
  interests SET('books', 'music', 'sport', 'travel') NOT NULL,
  balance DECIMAL(12,2) NOT NULL DEFAULT 0,
  born DATE,
  preferences JSON,
  created TIMESTAMP(6) NOT NULL
);
CREATE TABLE orders (
  id BIGINT NOT NULL PRIMARY KEY,
  customer_id BIGINT UNSIGNED NOT NULL,
  status ENUM('open', 'paid', 'sent', 'returned') NOT NULL,
  total DECIMAL(12,2) NOT NULL,
  note TEXT,
  placed DATETIME(3) NOT NULL,
  KEY (customer_id)
);
CREATE TABLE order_items (
  order_id BIGINT NOT NULL,
  line SMALLINT UNSIGNED NOT NULL,
  customer_id BIGINT UNSIGNED NOT NULL,
  sku CHAR(12) NOT NULL,
  quantity INT NOT NULL,
  price DECIMAL(10,2) NOT NULL,
  weight FLOAT,
  label VARBINARY(32),
  PRIMARY KEY (order_id, line)
);
CREATE TABLE coupons (
  code CHAR(12) NOT NULL PRIMARY KEY,
  customer_id BIGINT UNSIGNED NOT NULL,
  value DECIMAL(8,2) NOT NULL
);
