CREATE TABLE `a``b` (`c"d` INT PRIMARY KEY, `e'f` VARCHAR(5)) COMMENT='it''s /* no */ -- comment';
INSERT INTO `a``b` VALUES (1, 'g"h');
ALTER /* a comment */ TABLE `a``b` /*!80000 COMMENT='x' */ /*M!100000 COMMENT='x' */;
DELETE FROM `a``b`;
