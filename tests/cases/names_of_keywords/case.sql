CREATE TABLE `null`(`before` INT PRIMARY KEY, `after` INT, `op` INT, `type` INT, `Row` INT, `seq` INT);
INSERT INTO `null` VALUES (1, 2, 3, 4, 5, 6);
